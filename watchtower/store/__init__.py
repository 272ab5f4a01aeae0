"""What must outlive the tower: incidents with their cases, dumps, learned pauses, generations."""
