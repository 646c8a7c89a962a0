#!/usr/bin/env bash
# The table of docs/results.md: seven methods on Fashion-MNIST, two partitions, three seeds, one core a run.
#   benchmarks/fmnist_table.sh [FOLDER]        about an hour on 2 cores; a run that is done is not run again
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/fmnist_table}
mkdir -p "$out"

runs() {  # NAME RECIPE SEED [SET...]: one run for each of both partitions
    local name=$1 recipe=$2 seed=$3
    shift 3
    echo "$out/p10c2-$name-$seed recipes/small/${recipe}_fmnist.yaml common_args.random_seed=$seed $*"
    # where a client holds few samples of many classes, a = 1 is enough for FedShift
    [ "$recipe" != fedshift ] || set -- "$@" method_args.smoothing_fraction=
    echo "$out/dirichlet-$name-$seed recipes/small/${recipe}_fmnist.yaml common_args.random_seed=$seed" \
        "partition_args.partition_method=dirichlet partition_args.beta=0.1 $*"
}

one() {  # DIR RECIPE [SET...]
    local dir=$1 recipe=$2 sets=(--set device_args.threads=1)
    shift 2
    for set in "$@"; do sets+=(--set "$set"); done
    [ ! -e "$dir/summary.json" ] || return 0
    rm -rf "$dir"
    fedml run "$recipe" "${sets[@]}" --run-dir "$dir" --quiet
    echo "$dir"
}
export -f one

{
    for seed in 0 1 2; do
        for method in fedavg fedrs map fedphp fedlc fedshift fedmr; do runs $method $method $seed; done
        runs fedlc-tau5 fedlc $seed method_args.tau=5.0
    done
    for alpha in 0.1 0.9 1.0; do runs fedrs-alpha$alpha fedrs 0 method_args.alpha=$alpha; done
    runs fedlc-tau3 fedlc 0 method_args.tau=3.0
    runs fedmr-mu1_0.1 fedmr 0 method_args.mu1=0.1 method_args.mu2=0.001
} | OMP_NUM_THREADS=1 xargs -P "$(nproc)" -d '\n' -I{} bash -c 'one {}'

for partition in p10c2 dirichlet; do
    labelskew report "$out/$partition"-* --format markdown
    labelskew report "$out/$partition"-{fedavg,fedrs,map,fedphp,fedlc,fedlc-tau5,fedshift,fedmr}-? --plot "$out/$partition.png" >/dev/null
done
