"""Every hook and patch, once: what a training loop does, seen from outside."""
