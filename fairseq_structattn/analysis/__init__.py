"""Tools that look at trained models: they export and draw attention, and compute alignments, parses and BLEU.

Every tool is a function to import and a console command: ``structattn-export``, ``structattn-plot`` and others, all
in setup.cfg. Importing this package costs nothing: torch, fairseq and matplotlib are imported where they are used.
"""

import os

# The plugin itself: what --user-dir is by default.
PLUGIN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
