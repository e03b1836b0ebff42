"""A libzmq DEALER: sends chunks of many sizes, wants each acked, and says so.

usage: dealer.py ENDPOINT
Reads "TYPE ENVELOPE BODY" in hex, one message a line, from stdin; prints each
message that it receives in the same form.
"""
import sys

import zmq

sock = zmq.Context.instance().socket(zmq.DEALER)
sock.setsockopt(zmq.IDENTITY, b"python")
sock.setsockopt(zmq.HEARTBEAT_IVL, 100)
sock.setsockopt(zmq.HEARTBEAT_TTL, 2000)
sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2000)
sock.setsockopt(zmq.LINGER, 1000)
sock.connect(sys.argv[1])
for line in sys.stdin:
    sock.send_multipart([bytes.fromhex(x) for x in line[:-1].split(" ")])
    if not sock.poll(10_000):
        sys.exit("no answer")
    print(*(x.hex() for x in sock.recv_multipart()), flush=True)
