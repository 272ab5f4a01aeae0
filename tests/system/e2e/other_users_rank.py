"""A rank of another user, with a socket for its records: `other_users_rank.py FOLDER`."""

import os
import socket
import sys
import threading
import time

folder = sys.argv[1]
os.mkdir(folder, 0o711)
path = os.path.join(folder, "socket")
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
os.chmod(path, 0o666)
listener.listen(8)
ANSWER = b'{"entries":[{"process_group":["0",""],"collective_seq_id":1}]}'


def serve():
    while True:
        connection, _ = listener.accept()
        connection.recv(4096)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(ANSWER)}\r\n\r\n"
        connection.sendall(head.encode() + ANSWER)
        connection.close()


def hang():
    while True:
        time.sleep(600)  # line 30


threading.Thread(target=serve, daemon=True).start()
print("ready", flush=True)
hang()
