"""The shell around core: takes reports and dumps, ticks, carries out effects, answers queries."""
