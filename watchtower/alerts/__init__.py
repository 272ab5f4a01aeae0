"""What an alert contains. Pure: facts in, text out."""
