"""What is made from the notebooks: editions for Colab, handouts."""
