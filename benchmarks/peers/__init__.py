"""What Lacewing is measured against."""
