"""Kernels by hand: C for CPUs (`native`), Triton for GPUs (`triton`). Each has a reference implementation elsewhere."""
