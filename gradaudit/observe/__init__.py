"""What a training loop does, seen from outside by hooks and patches."""
