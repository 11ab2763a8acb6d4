"""Model access: three wire formats and a scripted model behind one protocol."""
