"""Code shared by the kernels of all models, in numba for the CPU and in Triton for GPUs."""
