"""Cases of imagined jobs of any size: layout, program, fault, evidence.

A small simulation of blocking calls finds where every rank gets stuck, so that the truth comes from
the program and the fault and not from what the diagnosis is hoped to say.
"""
