"""Constants used by the kernels of both compilers."""

import math

LOG_2 = math.log(2)
LOG2_E = 1 / LOG_2
