import math

import torch


def softmax(z, temperature=1.0):
    """Of a list of numbers."""
    e = [math.exp((v - max(z)) / temperature) for v in z]
    return [v / sum(e) for v in e]


def naive_divergence(student, teacher, classes, tau=1.0):
    """Mean Kullback-Leibler divergence of two models' outputs over some classes. Sample by sample."""
    total = 0.0
    for z, g in zip(student.tolist(), teacher.tolist(), strict=True):
        q, p = (softmax([row[c] for c in classes], tau) for row in (z, g))
        total += sum(b * math.log(b / a) for a, b in zip(q, p, strict=True))
    return total / len(student)


def naive_distillation(student, teacher, labels, tau=1.0, majority=None):
    """Of all classes but the label; ``majority``: classes that the teacher leaves out. Sample by sample."""
    total = 0.0
    for z, g, y in zip(student.tolist(), teacher.tolist(), labels.tolist(), strict=True):
        others = [c for c in range(len(z)) if c != y]
        taught = [c for c in others if majority is None or not majority[c]]
        if taught:
            q = dict(zip(others, softmax([z[c] for c in others], tau), strict=True))
            p = softmax([g[c] for c in taught], tau)
            total += sum(b * math.log(b / q[c]) for c, b in zip(taught, p, strict=True))
    return tau**2 * total / len(labels)


def drawn(rows, classes, seed=0):
    """Logits of two models, and labels."""
    generator = torch.Generator().manual_seed(seed)
    z, g = torch.randn(2, rows, classes, dtype=torch.float64, generator=generator) * 2
    return z, g, torch.randint(classes, (rows,), generator=generator)


def assert_finite(value, *leaves):
    """A value, and the gradients that it gives, are finite."""
    value.sum().backward()
    assert value.isfinite().all()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
