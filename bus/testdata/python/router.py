"""A libzmq ROUTER: prints its port, then sends every message back."""
import zmq

sock = zmq.Context.instance().socket(zmq.ROUTER)
sock.setsockopt(zmq.HEARTBEAT_IVL, 100)
sock.setsockopt(zmq.HEARTBEAT_TTL, 2000)
sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2000)
print(sock.bind_to_random_port("tcp://127.0.0.1"), flush=True)
while True:
    sock.send_multipart(sock.recv_multipart())
