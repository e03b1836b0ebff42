#!/usr/bin/python3
"""An agent for muster in Python 3 on Linux, written from docs/protocol.md alone.

It registers and beats, runs commands of the types exec (input {"argv": [...]}) and ping, and holds PIPELINE configs as
files. It has no journal on disk: each start begins a new epoch, and what was sent to it before becomes LOST. It speaks
NULL, so the coordinator has to listen on loopback or ipc. SIGTERM and Ctrl-C stop it in order.

    apt-get install python3-zmq python3-protobuf protobuf-compiler
    mkdir -p /tmp/muster-python
    protoc -I proto --python_out=/tmp/muster-python proto/muster/v1/*.proto

    PYTHONPATH=/tmp/muster-python examples/agent.py --coordinator tcp://127.0.0.1:7600 --id python-1
"""
import argparse
import hashlib
import json
import logging
import os
import pathlib
import platform
import queue
import random
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid

import zmq
from google.protobuf.message import DecodeError
from zmq.utils.monitor import recv_monitor_message

from muster.v1.agent_pb2 import Attributes, JournalPosition
from muster.v1.command_pb2 import STDERR, STDOUT, Cancel, Command, Output, OutputChunk, Target, TargetAck
from muster.v1.config_pb2 import Config, ConfigContent, ConfigFeedback, ConfigOffer, ConfigStatus, FetchConfig
from muster.v1.envelope_pb2 import Envelope, Nack
from muster.v1.session_pb2 import (ACCEPTS_COMMANDS, ACCEPTS_PIPELINE_CONFIGS, ANSWERS_PROBES, Goodbye, Heartbeat,
                                   HeartbeatAck, HeldCommand, Probe, ProbeAck, Register, Registered)

TICK = 0.1  # seconds between two looks at the clock
MAX_RUNNING = 8  # commands at a time
MAX_KNOWN = 10_000  # commands that are remembered
KEEP = 1 << 20  # bytes kept of the start of a stream, and as many of its end
CHUNK = 64 << 10
MAX_CONFIG = 4 << 20
STOP_GRACE = 5.0  # seconds between SIGTERM and SIGKILL for a program
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}  # as every agent calls them
REMEMBERS_ALL = 1 | 2 | 4 | 8  # the bits of CoordinatorCapability
log = logging.getLogger("agent")


def now():
    """Seconds on a clock that nobody sets, and that runs on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def seconds(duration):
    return duration.seconds + duration.nanos / 1e9


def replace_file(target, content, mode="0600"):
    """Stages the content beside its place and renames it: who reads sees the old file or the new one."""
    descriptor, staged = tempfile.mkstemp(prefix=".staged-", dir=os.path.dirname(target))
    try:
        with os.fdopen(descriptor, "wb") as file:
            if os.path.exists(target):  # it keeps its mode and owner
                old = os.stat(target)
                os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, old.st_mode & 0o7777)
            else:
                os.fchmod(descriptor, int(mode, 8))
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(staged, target)
    except BaseException:
        os.unlink(staged)
        raise


class Link:
    """One connection. libzmq would dial again by itself and hide that; here a link that broke stays broken."""

    def __init__(self, endpoint):
        self.up_since, self.broken = None, False
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 24 * 3600 * 1000)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, 8 << 20)
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        self.socket.connect(endpoint)

    def receive(self):
        """Waits a tick at most, then yields what came. What came before the link broke is yielded, too."""
        zmq.select([self.socket, self.monitor], [], [], TICK)
        while self.monitor.poll(0):
            if recv_monitor_message(self.monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.up_since = now()
            else:
                self.broken = True
        while not self.socket.closed and self.socket.poll(0):
            yield self.socket.recv_multipart()

    def send(self, message, **envelope):
        self.socket.send_multipart([message.DESCRIPTOR.full_name.encode(), Envelope(**envelope).SerializeToString(),
                                    message.SerializeToString()])

    def close(self, linger=0):
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger)


class Session:
    """Keeps the agent registered: dials, registers, beats, and hands on what comes in. All of it in one thread."""

    def __init__(self, endpoint, agent_id, config_root):
        self.endpoint, self.agent_id, self.run_id, self.started = endpoint, agent_id, uuid.uuid4().hex, time.time_ns()
        self.link, self.registered, self.sequence_num = None, False, 0
        self.interval, self.window, self.full_beats, self.pause = 10.0, 0.0, False, 1.0
        self.heard = self.dial_at = self.register_at = self.beat_at = 0.0  # times of now()
        self.register_wanted = False
        self.stop_wanted, self.stop_by = False, None
        self.commands = Commands(agent_id, self)
        self.configs = Configs(Folder(config_root), self)
        handlers = ((Registered, self.on_registered), (HeartbeatAck, self.on_heartbeat_ack), (Probe, self.on_probe),
                    (Goodbye, self.on_goodbye), (Nack, self.on_nack), (Command, self.commands.on_command),
                    (Cancel, self.commands.on_cancel), (TargetAck, self.commands.on_ack),
                    (ConfigOffer, self.configs.on_offer), (ConfigContent, self.configs.on_content))
        self.handlers = {kind.DESCRIPTOR.full_name.encode(): (kind, handler) for kind, handler in handlers}

    def run(self):
        while not self.done():
            if self.link:
                for frames in self.link.receive():
                    self.dispatch(frames)
            else:
                time.sleep(TICK)
            self.commands.tick()
            self.tick()
        self.tell(Goodbye(reason="stopped", leaving=True))
        if self.link:
            self.link.close(linger=1000)
        zmq.Context.instance().term()  # waits until the Goodbye is out

    def done(self):
        """After SIGTERM: stops what runs, and tells what came of it as long as there is time."""
        if self.stop_wanted and self.stop_by is None:
            self.stop_by = now() + STOP_GRACE + 3
            self.commands.stop()
        return self.stop_wanted and (now() >= self.stop_by or not self.commands.unsettled())

    def dispatch(self, frames):
        self.heard = now()
        kind, handler = self.handlers.get(frames[0], (None, None))
        try:
            if kind:
                _, envelope, body = frames
                handler(kind.FromString(body), Envelope.FromString(envelope))
        except (ValueError, DecodeError) as error:
            log.warning("malformed message: %s", error)

    def tick(self):
        if self.link is None:
            if now() >= self.dial_at:
                self.link, self.heard, self.register_wanted = Link(self.endpoint), now(), True
        elif self.link.broken:
            self.hang_up("the link is broken")
        elif now() > self.heard + 3 * self.interval:
            self.hang_up("nothing was heard")
        elif self.link.up_since and self.register_wanted and now() >= self.register_at:
            self.register()
        elif self.registered and now() >= self.beat_at:
            self.beat()

    def hang_up(self, why, not_before=0.0):
        """Gives the link up; the next one is dialed at a random time, so that agents do not come in a herd."""
        lasted = now() - self.link.up_since if self.link.up_since else 0.0
        self.pause = 1.0 if lasted >= 30 else min(60.0, self.pause * 2)
        wait = not_before + random.uniform(0, max(self.pause, self.window if self.registered else 0.0))
        log.info("%s; dialing again in %.1f s", why, wait)
        self.link.close()
        self.link, self.registered, self.dial_at = None, False, now() + wait
        self.configs.drop_fetches()

    def tell(self, message, **envelope):
        """Sends, or drops it while the agent is not registered: the next Register makes up for it."""
        if self.registered:
            self.link.send(message, **envelope)
        else:
            self.register_wanted = True

    def register(self):
        self.sequence_num += 1
        self.register_wanted, self.register_at = False, now() + 1.0
        register = Register(
            agent_id=self.agent_id, run_id=self.run_id, sequence_num=self.sequence_num, agent_type="muster-python",
            attributes=self.attributes(), tags={"lang": "python"}, command_types=sorted(TYPES),
            capabilities=ACCEPTS_COMMANDS | ACCEPTS_PIPELINE_CONFIGS | ANSWERS_PROBES, journal=self.commands.journal,
            commands=self.commands.report(), configs=self.configs.statuses.values())
        register.startup_time.FromNanoseconds(self.started)
        self.link.send(register)

    def attributes(self):
        machine_id = pathlib.Path("/etc/machine-id")
        return Attributes(version="0.1", ip=self.own_ip(), hostname=socket.gethostname(), os="linux",
                          arch=ARCH.get(platform.machine(), platform.machine()), pid=os.getpid(),
                          machine_id=machine_id.read_text().strip() if machine_id.exists() else "")

    def own_ip(self):
        """The address that this machine uses towards the coordinator."""
        try:
            host, port = self.endpoint.removeprefix("tcp://").rsplit(":", 1)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, int(port)))  # sends nothing
                return probe.getsockname()[0]
        except (OSError, ValueError):
            return ""

    def beat(self):
        self.beat_at = now() + self.interval * random.uniform(0.9, 1.1)
        if self.full_beats:
            self.register()
        else:
            self.sequence_num += 1
            self.tell(Heartbeat(sequence_num=self.sequence_num))

    def on_registered(self, registered, _):
        self.interval = seconds(registered.heartbeat_interval) or self.interval
        self.window = seconds(registered.reconnect_window)
        self.full_beats = registered.capabilities & REMEMBERS_ALL != REMEMBERS_ALL
        self.commands.settle(registered.settled_ids)
        if not self.registered:
            log.info("registered; a beat every %.1f s", self.interval)
            self.registered, self.beat_at = True, now() + self.interval * random.uniform(0.9, 1.1)
            self.commands.tell_ended()

    def on_heartbeat_ack(self, ack, _):
        if ack.flags & HeartbeatAck.REPORT_FULL_STATE:
            self.register_wanted = True

    def on_probe(self, _, envelope):
        self.link.send(ProbeAck(), in_reply_to=envelope.id, opaque=envelope.opaque)

    def on_goodbye(self, goodbye, _):
        self.hang_up(f"goodbye: {goodbye.reason}", seconds(goodbye.retry_after))

    def on_nack(self, nack, envelope):
        log.warning("nack %d of %s: %s %s", nack.reason, nack.type, nack.field, nack.detail)
        if nack.reason == Nack.NOT_REGISTERED:
            self.registered, self.register_wanted = False, True
        elif nack.reason == Nack.REFUSED or nack.type == Register.DESCRIPTOR.full_name:
            self.hang_up("not let in", not_before=30.0)
        elif nack.reason == Nack.RETRY and nack.type == ConfigFeedback.DESCRIPTOR.full_name:
            self.register_wanted, self.register_at = True, now() + 1.0  # that tells where all configs stand
        elif nack.reason == Nack.RETRY:
            self.commands.on_retry(nack.field)
        elif nack.reason == Nack.INVALID:
            self.commands.on_invalid(envelope.in_reply_to)


class Held:
    """A command that the agent knows, and where it stands."""

    def __init__(self, command_id, agent_id):
        self.target = Target(command_id=command_id, agent_id=agent_id)
        self.job, self.timeout, self.expires_at = None, 600.0, float("inf")
        self.stop = threading.Event()
        self.streams = {}  # of an ended command, by number
        self.tell_at, self.gap, self.retry_gap, self.settled = 0.0, 30.0, 1.0, False

    @property
    def ended(self):
        return self.target.state >= Target.SUCCEEDED

    def drop_output(self):
        self.streams = {}
        for field in ("stdout", "stderr", "result"):
            self.target.ClearField(field)


class Commands:
    """Starts each command at most once, and tells how it ended until that is acknowledged."""

    def __init__(self, agent_id, session):
        self.agent_id, self.session, self.stopping = agent_id, session, False
        self.journal = JournalPosition(epoch=uuid.uuid4().hex, seq=1)
        self.known = {}  # id to Held, oldest first; it stays a while after it is settled
        self.outcomes = queue.SimpleQueue()  # from the threads that run the jobs

    def unsettled(self):
        return [held for held in self.known.values() if not held.settled]

    def report(self):
        return [HeldCommand(command_id=held.target.command_id, state=held.target.state) for held in self.unsettled()]

    def on_command(self, command, _):
        if command.id in self.known:
            self.tell(self.known[command.id])
            return
        held = self.known[command.id] = Held(command.id, self.agent_id)
        if command.HasField("timeout"):
            held.timeout = seconds(command.timeout)
        if command.HasField("expires_in"):
            held.expires_at = now() + seconds(command.expires_in)
        try:
            if self.stopping or command.type not in TYPES:
                raise ValueError("the agent is stopping" if self.stopping else f"unknown command type {command.type!r}")
            held.job = TYPES[command.type](command.input)
        except (ValueError, RecursionError) as error:
            self.enter(held, Target(state=Target.REJECTED, reason=str(error)[:1000]))
        else:
            self.enter(held, Target(state=Target.RECEIVED))

    def on_cancel(self, cancel, _):
        held = self.known.setdefault(cancel.command_id, Held(cancel.command_id, self.agent_id))  # it may come later
        if held.target.state == Target.RUNNING:
            held.stop.set()
        elif held.ended:
            self.tell(held)
        else:
            self.enter(held, Target(state=Target.CANCELLED))

    def tick(self):
        while not self.outcomes.empty():
            held, outcome, held.streams = self.outcomes.get()
            self.enter(held, outcome)
        for held in self.unsettled():
            if held.ended and now() >= held.tell_at:
                self.tell(held)
            elif held.target.state == Target.RECEIVED and now() >= held.expires_at:
                self.enter(held, Target(state=Target.EXPIRED))
            elif held.target.state == Target.RECEIVED and self.running() < MAX_RUNNING:
                held.target.start_time.GetCurrentTime()
                self.enter(held, Target(state=Target.RUNNING))
                threading.Thread(target=self.work, args=(held,), daemon=True).start()

    def running(self):
        return sum(held.target.state == Target.RUNNING for held in self.unsettled())

    def work(self, held):
        """Runs a job, in a thread of its own."""
        try:
            outcome, streams = held.job.run(held.timeout, held.stop)
        except Exception as error:  # whatever it was, the command has an end
            outcome, streams = Target(state=Target.FAILED, reason=f"{type(error).__name__}: {error}"[:1000]), {}
        self.outcomes.put((held, outcome, streams))

    def enter(self, held, change):
        self.journal.seq += 1
        held.target.MergeFrom(change)
        held.target.journal_seq = self.journal.seq
        if held.ended:
            held.target.end_time.GetCurrentTime()
            log.info("command %s: %s %s", held.target.command_id, Target.State.Name(held.target.state), held.target.reason)
        self.tell(held)

    def tell(self, held):
        if held.ended:
            held.tell_at, held.gap = now() + held.gap, min(300.0, held.gap * 2)
        for number, stream in held.streams.items():
            for offset, data in stream.chunks():
                self.session.tell(OutputChunk(command_id=held.target.command_id, stream=number, offset=offset, data=data))
        self.session.tell(held.target, id=held.target.command_id)

    def tell_ended(self):
        for held in filter(lambda held: held.ended, self.unsettled()):
            self.tell(held)

    def on_ack(self, ack, _):
        self.settle(ack.command_ids)

    def on_retry(self, command_id):
        held = self.known.get(command_id)
        if held:
            held.tell_at, held.retry_gap = now() + held.retry_gap, min(300.0, held.retry_gap * 2)

    def on_invalid(self, command_id):
        """A final Target was refused: it is told once more without output and result, then given up."""
        held = self.known.get(command_id)
        if held and held.ended and (held.streams or held.target.result):
            held.drop_output()
            self.tell(held)
        else:
            self.settle([command_id])

    def settle(self, command_ids):
        for held in filter(None, map(self.known.get, command_ids)):
            if held.target.state != Target.RUNNING:  # what runs goes on, and tells its end
                held.settled = True
                held.drop_output()
        while len(self.known) > MAX_KNOWN and next(iter(self.known.values())).settled:
            del self.known[next(iter(self.known))]

    def stop(self):
        self.stopping = True
        for held in self.unsettled():
            held.stop.set()
            if held.target.state == Target.RECEIVED:
                self.enter(held, Target(state=Target.REJECTED, reason="the agent is stopping"))


class Stream:
    """What a program wrote to one stream: all of it is counted, its start and its end are kept."""

    def __init__(self):
        self.size, self.sha256, self.head, self.tail = 0, hashlib.sha256(), bytearray(), bytearray()

    def add(self, data):
        self.size += len(data)
        self.sha256.update(data)
        room = KEEP - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        del self.tail[:-KEEP]

    def describe(self):
        kept = len(self.head) + len(self.tail)
        return Output(size=self.size, kept=kept, sha256=self.sha256.hexdigest(), truncated=kept < self.size,
                      head=len(self.head) if kept < self.size else 0)

    def chunks(self):
        kept = bytes(self.head + self.tail)
        return ((offset, kept[offset:offset + CHUNK]) for offset in range(0, len(kept), CHUNK))


class Ping:
    """The command type ping: shows that commands get through."""

    def __init__(self, _):
        pass

    def run(self, _timeout, _stop):
        return Target(state=Target.SUCCEEDED), {}


class Exec:
    """The command type exec: a program without a shell. It is a process group of its own, with its children."""

    def __init__(self, text):
        fields = json.loads(text)
        if not isinstance(fields, dict) or set(fields) != {"argv"}:
            raise ValueError("input: want argv and nothing else")
        self.argv = fields["argv"]
        if not (isinstance(self.argv, list) and self.argv and all(isinstance(word, str) for word in self.argv)):
            raise ValueError("input: argv has to be a list of strings")

    def run(self, timeout, stop):
        deadline, streams = now() + timeout, {STDOUT: Stream(), STDERR: Stream()}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(self.argv, start_new_session=True, **pipes) as process, \
                selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, streams[STDOUT])
            selector.register(process.stderr, selectors.EVENT_READ, streams[STDERR])
            state = self.follow(process, selector, deadline, stop)
        code = process.returncode
        outcome = Target(state=state or (Target.FAILED if code else Target.SUCCEEDED),
                         stdout=streams[STDOUT].describe(), stderr=streams[STDERR].describe())
        if code < 0:
            outcome.signal = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        else:
            outcome.exit_code = code
        return outcome, streams

    def follow(self, process, selector, deadline, stop):
        """Reads until the program has ended, and stops it when it has to: then it returns the state."""
        state = kill_at = ended_at = None
        while not ended_at or (selector.get_map() and now() < ended_at + 1):  # a child may hold a stream open
            for key, _ in selector.select(TICK):
                data = os.read(key.fd, CHUNK)
                key.data.add(data)
                if not data:
                    selector.unregister(key.fileobj)
            if not ended_at and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                ended_at = now()
            elif not state and not ended_at and (stop.is_set() or now() >= deadline):
                state, kill_at = Target.INTERRUPTED if stop.is_set() else Target.TIMED_OUT, now() + STOP_GRACE
                os.killpg(process.pid, signal.SIGTERM)
            elif state and now() >= kill_at:
                os.killpg(process.pid, signal.SIGKILL)
        if state:
            os.killpg(process.pid, signal.SIGKILL)  # what is left of it; the number is safe, as it is not waited for yet
        return state


TYPES = {"exec": Exec, "ping": Ping}


class Folder:
    """The folder that configs are put in. Nothing gets out of it."""

    def __init__(self, root):
        os.makedirs(root, exist_ok=True)
        self.root = os.path.realpath(root)

    def resolve(self, path):
        if "\0" in path or {"", ".", ".."}.intersection(path.split("/")):  # an absolute path begins with an empty part
            raise ValueError(f"path {path!r} is not allowed")
        target = os.path.realpath(os.path.join(self.root, path))
        if not target.startswith(self.root + "/"):
            raise ValueError(f"path {path!r} leads out of the folder")
        return target

    def digest(self, path):
        try:
            with open(self.resolve(path), "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except (OSError, ValueError):
            return ""

    def put(self, path, content, mode):
        target = self.resolve(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        replace_file(target, content, mode)

    def remove(self, path):
        pathlib.Path(self.resolve(path)).unlink(missing_ok=True)


class Configs:
    """Holds PIPELINE configs as files, and remembers in a file beside the folder which versions they are."""

    def __init__(self, folder, session):
        self.folder, self.session = folder, session
        self.memory = pathlib.Path(folder.root + ".json")
        self.held = json.loads(self.memory.read_text()) if self.memory.exists() else {}  # name to version, path, sha256
        self.statuses = {}  # name to ConfigStatus
        self.fetches = {}  # name to offer and the bytes so far
        for name in self.held:
            self.show_running(name)

    def running(self, name):
        """The version that really is in place; 0 when the file is not what was put there."""
        held = self.held.get(name)
        return held["version"] if held and self.folder.digest(held["path"]) == held["sha256"] else 0

    def holds(self, offer):
        """The same version can be of another content: a config may have been deleted and made again."""
        held = self.held.get(offer.name, {})
        return (offer.version == self.running(offer.name) and offer.sha256 == held["sha256"]
                and (offer.file.path or offer.name) == held["path"])

    def show_running(self, name):
        """Forgets what was tried: the coordinator will offer it again."""
        version = self.running(name)
        self.statuses.pop(name, None)
        if version:
            self.statuses[name] = ConfigStatus(kind=Config.PIPELINE, name=name, version=version,
                                               status=ConfigStatus.APPLIED, running_version=version)

    def remember(self, name, held):
        self.held[name] = held
        if held is None:
            del self.held[name]
        replace_file(self.memory, json.dumps(self.held, indent=1).encode())

    def tell(self, name, version, status, reason=""):
        log.info("config %s %d: %s %s", name, version, ConfigStatus.Status.Name(status), reason)
        self.statuses[name] = ConfigStatus(kind=Config.PIPELINE, name=name, version=version, status=status,
                                           running_version=self.running(name), reason=reason[:1000])
        self.session.tell(ConfigFeedback(configs=[self.statuses[name]]))

    def on_offer(self, offer, _):
        if offer.kind != Config.PIPELINE or offer.version == 0:
            return
        fetch = self.fetches.get(offer.name)
        if fetch and fetch[0] == offer:
            self.fetch(*fetch)
            return
        self.fetches.pop(offer.name, None)  # the newer offer replaces it
        if offer.version == -1:
            self.attempt(offer, self.delete)
        elif self.holds(offer):
            self.tell(offer.name, offer.version, ConfigStatus.APPLIED)
        else:
            self.attempt(offer, self.begin)

    def attempt(self, offer, step, *content):
        try:
            step(offer, *content)
        except (OSError, ValueError) as error:
            self.tell(offer.name, offer.version, ConfigStatus.FAILED, str(error))

    def delete(self, offer):
        if offer.name in self.held:
            self.remove_file(offer.name, self.held[offer.name]["path"])
            self.remember(offer.name, None)
        self.tell(offer.name, -1, ConfigStatus.DELETED)

    def remove_file(self, name, path):
        if all(other == name or held["path"] != path for other, held in self.held.items()):
            self.folder.remove(path)

    def begin(self, offer):
        if offer.file.check_cmd or offer.file.reload_cmd:
            raise ValueError("this agent runs no check_cmd and no reload_cmd")
        if offer.size > MAX_CONFIG:
            raise ValueError(f"{offer.size} bytes are too many")
        self.folder.resolve(offer.file.path or offer.name)
        self.tell(offer.name, offer.version, ConfigStatus.APPLYING)
        if offer.inline:
            self.apply(offer, offer.content)
        else:
            self.fetches[offer.name] = (offer, bytearray())
            self.fetch(*self.fetches[offer.name])

    def fetch(self, offer, content):
        self.session.tell(FetchConfig(kind=offer.kind, name=offer.name, version=offer.version, offset=len(content)))

    def on_content(self, part, _):
        offer, content = self.fetches.get(part.name, (None, b""))
        if offer is None or part.kind != offer.kind or part.version != offer.version:
            return
        if part.gone:
            del self.fetches[part.name]
            self.show_running(part.name)
            self.session.register_wanted = True
        elif part.offset == len(content):
            content += part.data
            if part.data and len(content) < offer.size:
                self.fetch(offer, content)
            else:
                del self.fetches[part.name]
                self.attempt(offer, self.apply, bytes(content))

    def apply(self, offer, content):
        if len(content) != offer.size or hashlib.sha256(content).hexdigest() != offer.sha256:
            raise ValueError("the content has another size or sha256")
        path, before = offer.file.path or offer.name, self.held.get(offer.name)
        self.remember(offer.name, {"version": offer.version, "path": path, "sha256": offer.sha256})
        try:  # after a crash in here the digest tells that the new version is not in place
            self.folder.put(path, content, offer.file.mode or "0600")
        except (OSError, ValueError):
            self.remember(offer.name, before)
            raise
        if before and self.folder.resolve(before["path"]) != self.folder.resolve(path):
            self.remove_file(offer.name, before["path"])
        self.tell(offer.name, offer.version, ConfigStatus.APPLIED)

    def drop_fetches(self):
        """The link is gone: the offers come again on the next one."""
        for name in self.fetches:
            self.show_running(name)
        self.fetches.clear()


def main():
    parser = argparse.ArgumentParser(description="An agent for muster in Python.")
    parser.add_argument("--coordinator", required=True, metavar="ENDPOINT", help="such as tcp://127.0.0.1:7600")
    parser.add_argument("--id", required=True, help="of this agent; it stays the same for ever")
    parser.add_argument("--config-root", metavar="DIR", help="folder for configs (default: ./configs-ID)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    session = Session(options.coordinator, options.id, options.config_root or f"./configs-{options.id}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(session, "stop_wanted", True))
    session.run()


if __name__ == "__main__":
    main()
