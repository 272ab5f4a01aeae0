"""A training process that hangs in the second of two loops."""

import time

import watchtower_heartbeat


def fetch():
    time.sleep(600)


def train():
    for epoch in range(2):
        watchtower_heartbeat.beat(epoch)
        while True:
            if epoch:
                fetch()  # line 17
            break


print("ready", flush=True)
train()
