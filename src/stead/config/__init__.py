"""Files that people edit, and the secrets that they must not find in them."""
