"""What the kernels of all models share: numba's on the CPU, Triton's on GPUs."""
