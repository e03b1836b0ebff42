#!/usr/bin/python3
"""A muster agent in Python: any program that speaks ZeroMQ and protobuf can be one.

It registers, beats, runs "exec" and "ping" commands and returns what came of them. What it holds is in memory
only, so it says with a new journal epoch at each start that it remembers nothing: commands that were sent to it
before then end as LOST instead of being run twice. The agent in Go keeps a journal on disk.

    sudo apt-get install python3-zmq python3-protobuf protobuf-compiler
    protoc -I proto --python_out=/tmp/muster-python proto/muster/v1/*.proto      (after mkdir /tmp/muster-python)
    PYTHONPATH=/tmp/muster-python examples/agent.py --coordinator tcp://127.0.0.1:7600 --id python-1
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import platform
import queue
import random
import socket
import subprocess
import time
import uuid

import zmq
from muster.v1 import agent_pb2, command_pb2, envelope_pb2, session_pb2

CHUNK = 64 << 10  # most data in one OutputChunk
KEPT = 1 << 20  # most output kept of one stream
T = command_pb2.Target


class Agent:
    def __init__(self, endpoint, agent_id):
        self.id = agent_id
        self.run_id = uuid.uuid4().hex
        self.journal = agent_pb2.JournalPosition(epoch=uuid.uuid4().hex, seq=1)
        self.started = time.time()
        self.sequence = 0
        self.interval = 10.0  # until Registered says another one
        self.registered = False
        self.states = {}  # command id → state, of all that is not settled
        self.finals = {}  # command id → (messages that tell its end), until they are acknowledged
        self.done = queue.Queue()  # (Target, chunks) from the workers
        self.workers = concurrent.futures.ThreadPoolExecutor(4)
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.identity = agent_id.encode()  # only a hint; the id in Register counts
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, 10_000)  # ZMTP PING, so that a dead link is dialled again
        self.socket.connect(endpoint)

    # A message is three frames: the type's full name, an Envelope (it may be empty) and the message itself.
    def send(self, message):
        self.socket.send_multipart([message.DESCRIPTOR.full_name.encode(), b"", message.SerializeToString()])

    def run(self):
        self.register()
        next_beat = time.monotonic() + self.interval
        while True:
            if self.socket.poll(50):
                kind, _envelope, body = self.socket.recv_multipart()
                self.on_message(kind.decode(), body)
            while not self.done.empty():
                self.on_done(*self.done.get())
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + self.interval * random.uniform(0.9, 1.1)
                if self.registered:
                    self.sequence += 1
                    self.send(session_pb2.Heartbeat(sequence_num=self.sequence))
                else:
                    self.register()

    def register(self):
        self.sequence += 1
        message = session_pb2.Register(
            agent_id=self.id, run_id=self.run_id, agent_type="python-example", journal=self.journal,
            sequence_num=self.sequence, capabilities=session_pb2.ACCEPTS_COMMANDS, command_types=["exec", "ping"],
            commands=[session_pb2.HeldCommand(command_id=i, state=s) for i, s in self.states.items()],
            attributes=agent_pb2.Attributes(version="example", hostname=socket.gethostname(), os=platform.system().lower(),
                                            arch=platform.machine(), pid=os.getpid()))
        message.startup_time.FromNanoseconds(int(self.started * 1e9))
        self.send(message)

    def on_message(self, kind, body):
        handler = {
            "muster.v1.Registered": (session_pb2.Registered, self.on_registered),
            "muster.v1.HeartbeatAck": (session_pb2.HeartbeatAck, self.on_heartbeat_ack),
            "muster.v1.Command": (command_pb2.Command, self.on_command),
            "muster.v1.TargetAck": (command_pb2.TargetAck, self.on_target_ack),
            "muster.v1.Nack": (envelope_pb2.Nack, self.on_nack),
        }.get(kind)
        if handler:  # a coordinator that is newer may say more
            message_type, call = handler
            call(message_type.FromString(body))

    def on_registered(self, message):
        self.registered = True
        self.interval = message.heartbeat_interval.ToMilliseconds() / 1000 or self.interval
        for command_id in message.settled_ids:
            self.forget(command_id)
        for messages in self.finals.values():  # what the old link may have lost
            self.send_all(messages)

    def on_heartbeat_ack(self, message):
        if message.flags & session_pb2.HeartbeatAck.REPORT_FULL_STATE:
            self.register()

    def on_nack(self, nack):
        print(f"nack: {nack}", flush=True)
        if nack.reason == envelope_pb2.Nack.NOT_REGISTERED:  # libzmq has dialled again: this is a new link
            self.registered = False
            self.register()
        elif nack.reason == envelope_pb2.Nack.RETRY and nack.field in self.finals:
            self.send_all(self.finals[nack.field])
        elif nack.reason == envelope_pb2.Nack.REFUSED:
            raise SystemExit(f"refused: {nack.detail}")

    def on_command(self, command):
        if command.id in self.states:  # repeated: say where it stands, never run it twice
            if command.id in self.finals:
                self.send_all(self.finals[command.id])
            else:
                self.report(T(command_id=command.id, state=self.states[command.id]))
            return
        self.report(T(command_id=command.id, state=T.RECEIVED))
        deadline = time.monotonic() + command.expires_in.ToMilliseconds() / 1000
        self.workers.submit(self.work, command, deadline)

    def on_target_ack(self, message):
        for command_id in message.command_ids:
            self.forget(command_id)

    def forget(self, command_id):
        self.states.pop(command_id, None)
        self.finals.pop(command_id, None)

    def report(self, target):
        self.journal.seq += 1
        target.agent_id = self.id
        target.journal_seq = self.journal.seq
        self.states[target.command_id] = target.state
        self.send(target)

    def on_done(self, target, chunks):
        if target.state == T.RUNNING:
            self.report(target)
            return
        self.journal.seq += 1
        target.agent_id = self.id
        target.journal_seq = self.journal.seq
        self.states[target.command_id] = target.state
        self.finals[target.command_id] = chunks + [target]  # the Target follows its output
        self.send_all(self.finals[target.command_id])

    def send_all(self, messages):
        for message in messages:
            self.send(message)

    # work runs in a thread of its own; it talks to the socket's thread through self.done.
    def work(self, command, deadline):
        target, chunks = T(command_id=command.id), []
        if time.monotonic() > deadline:
            target.state, target.reason = T.EXPIRED, "its time was over before its turn came"
        elif command.type == "ping":
            target.state = T.SUCCEEDED
            target.start_time.GetCurrentTime()
            target.end_time.GetCurrentTime()
        elif command.type != "exec":
            target.state, target.reason = T.REJECTED, f"unknown command type {command.type!r}"
        else:
            chunks = self.execute(command, target)
        self.done.put((target, chunks))

    def execute(self, command, target):
        running = T(command_id=command.id, state=T.RUNNING)
        running.start_time.GetCurrentTime()
        target.start_time.CopyFrom(running.start_time)
        self.done.put((running, []))
        chunks = []
        try:
            program = subprocess.run(json.loads(command.input)["argv"], stdin=subprocess.DEVNULL, capture_output=True,
                                     timeout=command.timeout.ToMilliseconds() / 1000 or None, check=False)
            target.state = T.SUCCEEDED if program.returncode == 0 else T.FAILED
            if program.returncode >= 0:
                target.exit_code = program.returncode
            chunks += self.keep(target, command_pb2.STDOUT, target.stdout, program.stdout)
            chunks += self.keep(target, command_pb2.STDERR, target.stderr, program.stderr)
        except subprocess.TimeoutExpired:
            target.state, target.reason = T.TIMED_OUT, "stopped at its timeout"
        except (OSError, ValueError, KeyError, TypeError) as error:
            target.state, target.reason = T.FAILED, str(error)
        target.end_time.GetCurrentTime()
        return chunks

    @staticmethod
    def keep(target, stream, output, data):
        kept = data[:KEPT]
        output.size, output.kept, output.sha256 = len(data), len(kept), hashlib.sha256(data).hexdigest()
        if len(kept) < len(data):
            output.truncated, output.head = True, len(kept)
        return [command_pb2.OutputChunk(command_id=target.command_id, stream=stream, offset=i, data=kept[i:i + CHUNK])
                for i in range(0, len(kept), CHUNK)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", default="tcp://127.0.0.1:7600")
    parser.add_argument("--id", default=socket.gethostname())
    arguments = parser.parse_args()
    try:
        Agent(arguments.coordinator, arguments.id).run()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
