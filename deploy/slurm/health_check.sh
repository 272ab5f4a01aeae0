#!/bin/sh
# HealthCheckProgram of slurm.conf: drains this node if a check of the doctor fails on it, or if a
# verdict of the last day blames it for a hang of a job. docs/doctor.md explains it. As Prolog it also
# keeps the job from starting here, as Epilog it checks the node after each job.
# Until `mode=drain` is in the settings, it only writes to syslog what it would do.
settings=/etc/watchtower/slurm.env
mode=observe
doctor=on          # off: drain only for verdicts
max_percent=5      # of the nodes of this cluster, but at least one, may be drained by watchtower
condition_options=
handled=/run/watchtower-health-check
drained=0
node=${SLURMD_NODENAME:-$(hostname -s)}
# Slurm starts it without one.
PATH=/usr/local/bin:/usr/bin:/bin:/opt/watchtower/bin:$PATH
export PATH

if [ -r "$settings" ]; then
    . "$settings"
    export WATCHTOWER_URL WATCHTOWER_TOKEN_FILE WATCHTOWER_CA_FILE
fi

log() { logger -t watchtower-health-check -- "$node: $*" 2>/dev/null; }

# Whether one more node may be drained: the reasons of Slurm show how many watchtower has drained.
may_drain() {
    all=$(sinfo -h -N -o %N | sort -u | grep -c .)
    ours=$(sinfo -h -N -o '%N %E' | sort -u | grep -c ' watchtower: ')
    [ "$ours" -eq 0 ] || [ $(((ours + 1) * 100)) -le $((max_percent * all)) ]
}

# Drain once for KEY of KIND: a node that a person resumed stays in service until there is another.
drain() { # KIND KEY REASON
    [ "$(cat "$handled.$node.$1" 2>/dev/null)" = "$mode $2" ] && return
    if [ "$mode" != drain ]; then
        log "would drain (mode=$mode): $3"
    elif ! may_drain; then
        log "not drained, watchtower has drained $max_percent % of the nodes already: $3"
        return
    elif scontrol update NodeName="$node" State=DRAIN Reason="$3"; then
        log "drained: $3"
        drained=1
    else
        return
    fi
    echo "$mode $2" > "$handled.$node.$1"
}

if [ "$doctor" = on ]; then
    line=$(timeout 20 watchtower-agent doctor --about node --output line 2>/dev/null)
    case $? in
        0) rm -f "$handled.$node.doctor" ;;
        1) drain doctor "${line%%:*}" "watchtower: $line" ;;
    esac
fi
# Exit code 1: drain. 2: the tower does not answer, which drains nothing.
reason=$(timeout 20 watchtower condition --node "$node" $condition_options 2>/dev/null)
[ $? -eq 1 ] && drain verdict "$reason" "$reason"
# Slurm requeues a job whose Prolog fails.
[ "$SLURM_SCRIPT_CONTEXT" = prolog_slurmd ] && exit "$drained"
exit 0
