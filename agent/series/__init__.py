"""Values of each rank and GPU in the last 15 minutes, and the last output of the suspect."""
