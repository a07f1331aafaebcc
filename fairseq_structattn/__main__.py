"""``python -m fairseq_structattn`` prints the path to give to ``--user-dir``."""

import os

print(os.path.dirname(os.path.abspath(__file__)))
