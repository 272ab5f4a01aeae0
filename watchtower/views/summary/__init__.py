"""Makes the summary of a case: one file for each part that pages show. It reads the picture of the
diagnosis and decides nothing."""
