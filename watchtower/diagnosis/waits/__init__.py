"""Which rank waits for which.

The lower part builds the waits of the picture: `sources` asks each source which ranks wait, and
`collective_logs` and `graph` show for which. The upper part reads them: where the waiting
ends (`sinks`), which rank of a cycle is odd (`odd_rank`), which ranks are in different calls
(`mismatches`) and which message was left out (`messages`).
"""
