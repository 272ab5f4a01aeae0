"""A training process that does what it is told, one statement a line, and says when it did."""

import os
import signal
import subprocess
import sys
import threading
import time

import watchtower_heartbeat

from watchtower.drills.programs.identity import set_title


def sleep_in_a_loader():
    while True:
        time.sleep(60)


def spin():
    while True:
        pass


def read_for_ever(path):
    with open(path, "rb") as pipe:
        pipe.read()


words = {
    "os": os,
    "signal": signal,
    "subprocess": subprocess,
    "sys": sys,
    "threading": threading,
    "time": time,
    "Heartbeat": watchtower_heartbeat.Heartbeat,
    "beat": watchtower_heartbeat.beat,
    "phase": watchtower_heartbeat.phase,
    "sleep_in_a_loader": sleep_in_a_loader,
    "spin": spin,
    "read_for_ever": read_for_ever,
    "set_title": set_title,
}

print("ready", flush=True)
for line in sys.stdin:
    exec(line, words)
    print("done", flush=True)
