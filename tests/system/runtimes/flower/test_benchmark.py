from pathlib import Path

BENCHMARK = Path(__file__).parents[4] / "benchmarks" / "flower.py"


def test_the_benchmark_measures_three_variants(flower, tmp_path):
    printed = flower.run("python", BENCHMARK, "--tiny", log=tmp_path / "log")
    _, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines()]
    assert [row[1] for row in rows] == ["sp", "Flower", "hand-written"]
    assert all(float(cell) > 0 for row in rows for cell in row[2:4])
