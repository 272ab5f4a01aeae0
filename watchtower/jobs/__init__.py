"""One job: is it stuck or slow? Conditions, suspicions, patience, incidents."""
