#!/bin/sh
# TaskProlog of slurm.conf: heartbeats for all jobs, without an installation in users' environments.
# Slurm adds the variables that this prints to the task. A job that sets WATCHTOWER_HEARTBEAT is left
# alone. docs/slurm.md says how the client gets to the nodes.
client=/opt/watchtower-client/watchtower_heartbeat/zero_touch
if [ -z "$WATCHTOWER_HEARTBEAT" ] && [ -r "$client/sitecustomize.py" ]; then
    echo "export PYTHONPATH=$client${PYTHONPATH:+:$PYTHONPATH}"
    echo "export WATCHTOWER_HEARTBEAT=auto"
fi
