"""Replacing a function by another."""

import sys


def replace_everywhere(name, old, new):
    """Rebinds `name` in all modules of fairseq that hold `old`, also in those that imported it by name."""
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] in ("fairseq", "fairseq_cli") and vars(module).get(name) is old:
            setattr(module, name, new)
