"""A libzmq ROUTER with heartbeats: prints its port, then sends every message back.

usage: router.py PORT [SECRET [ALLOWED_KEY]]
PORT 0 takes any. With an allowed key every other key is denied (status 400, to
which libzmq answers with ERROR).
"""
import sys
import threading

import zmq

context = zmq.Context.instance()


def answer(zap, allowed):
    while True:
        version, request, *rest = zap.recv_multipart()
        status = b"200" if zmq.utils.z85.encode(rest[4]) == allowed else b"400"
        zap.send_multipart([version, request, status, b"", b"", b""])


sock = context.socket(zmq.ROUTER)
sock.setsockopt(zmq.HEARTBEAT_IVL, 100)
sock.setsockopt(zmq.HEARTBEAT_TTL, 2000)
sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2000)
if len(sys.argv) > 2:
    sock.curve_server, sock.curve_secretkey = True, sys.argv[2].encode()
if len(sys.argv) > 3:
    import zmq.utils.z85

    sock.zap_domain = b"global"
    zap = context.socket(zmq.REP)
    zap.bind("inproc://zeromq.zap.01")
    threading.Thread(target=answer, args=[zap, sys.argv[3].encode()], daemon=True).start()
if sys.argv[1] == "0":
    print(sock.bind_to_random_port("tcp://127.0.0.1"), flush=True)
else:
    sock.bind("tcp://127.0.0.1:" + sys.argv[1])
    print(sys.argv[1], flush=True)
while True:
    sock.send_multipart(sock.recv_multipart())
