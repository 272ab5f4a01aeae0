#!/bin/sh
# HealthCheckProgram of slurm.conf: drains this node if watchtower has blamed its hardware for a hang of
# a job in the last day. Each incident drains once: a node that was resumed stays. A tower that does
# not answer drains nothing. The address of the tower, and a token for readers, are in this file. It
# may also set other domains (docs/verdicts.md):
settings=/etc/watchtower/slurm.env
domains="gpu node"
handled=/run/watchtower-health-check
node=${SLURMD_NODENAME:-$(hostname -s)}
# Slurm starts it without one.
PATH=/usr/local/bin:/usr/bin:/bin:$PATH
export PATH

if [ -r "$settings" ]; then
    . "$settings"
    export WATCHTOWER_URL WATCHTOWER_TOKEN_FILE WATCHTOWER_CA_FILE
fi
for domain in $domains; do
    answer=$(timeout 20 watchtower incidents --node "$node" --domain "$domain" --since 1d \
        --limit 1 --json 2>/dev/null) || continue
    incident=$(printf '%s' "$answer" | sed -n 's/.*"id": *"\([0-9A-Z]*\)".*/\1/p')
    if [ -z "$incident" ] || [ "$(cat "$handled.$node.$domain" 2>/dev/null)" = "$incident" ]; then
        continue
    fi
    if scontrol update NodeName="$node" State=DRAIN Reason="watchtower: $domain, $incident"; then
        echo "$incident" > "$handled.$node.$domain"
    fi
done
exit 0
