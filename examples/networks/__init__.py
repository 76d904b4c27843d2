"""Networks made of Lacewing's layers."""
