"""A libzmq DEALER with heartbeats.

usage: dealer.py ENDPOINT [SERVER_KEY PUBLIC SECRET]
Reads "TYPE ENVELOPE BODY" in hex, one message a line, from stdin; prints each
message that it receives in the same form. What happens on its socket goes to
stderr, and a line "failed EVENT" to stdout when a handshake fails.
"""
import os
import sys
import threading

import zmq
from zmq.utils.monitor import recv_monitor_message

FAILURES = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "no detail",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "protocol",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "auth",
}

sock = zmq.Context.instance().socket(zmq.DEALER)
sock.setsockopt(zmq.IDENTITY, b"python")
sock.setsockopt(zmq.HEARTBEAT_IVL, 100)
sock.setsockopt(zmq.HEARTBEAT_TTL, 2000)
sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2000)
sock.setsockopt(zmq.LINGER, 1000)
if len(sys.argv) > 2:
    server, public, secret = (x.encode() for x in sys.argv[2:])
    sock.curve_serverkey, sock.curve_publickey, sock.curve_secretkey = server, public, secret


def watch(monitor):
    while True:
        event = recv_monitor_message(monitor)["event"]
        if event in FAILURES:
            print("failed", FAILURES[event], flush=True)


threading.Thread(target=watch, args=[sock.get_monitor_socket()], daemon=True).start()
sock.connect(sys.argv[1])


inbox = zmq.Poller()
inbox.register(sock, zmq.POLLIN)
inbox.register(sys.stdin.fileno(), zmq.POLLIN)
parts = []  # of a line that has not ended
while True:
    ready = dict(inbox.poll())
    if sock in ready:
        print(*(x.hex() for x in sock.recv_multipart()), flush=True)
    if sys.stdin.fileno() in ready:
        chunk = os.read(sys.stdin.fileno(), 1 << 20)
        if not chunk:
            break
        parts.append(chunk)
        if b"\n" not in chunk:
            continue
        *whole, rest = b"".join(parts).split(b"\n")
        parts = [rest]
        for line in whole:
            sock.send_multipart([bytes.fromhex(x) for x in line.decode().split(" ")])
os._exit(0)
