"""What anybody is shown, as values. Pure."""
