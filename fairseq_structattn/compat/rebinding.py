"""Putting a function in the place of another."""

import sys


def replace_everywhere(name, old, new):
    """Rebind `name` wherever fairseq holds `old`: modules that imported it by name would go on using it otherwise."""
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] in ("fairseq", "fairseq_cli") and vars(module).get(name) is old:
            setattr(module, name, new)
