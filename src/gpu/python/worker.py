"""The worker: imports the user's batch function and runs it on the batches that the server sends.

The server hands this file over on standard input, which is one end of a socket. The socket is moved to a descriptor of
its own first thing, so that nothing that the user's code reads or prints can get between the frames. The main thread runs
the user's code and reads its orders itself: a reader in between would cost a change of threads for every batch. What is
staged ahead comes on a second socket, which a thread of its own reads: so the next batch is decoded while the present one
runs, and the process ends when the server does, whatever the user's code is doing.

Standard library only, Python 3.8 and newer. In front of it comes signals.py. The frames are described in frame.rs.
"""

import difflib
import faulthandler
import importlib
import importlib.util
import inspect
import json
import os
import socket
import struct
import sys
import threading
import traceback

FAILED, PROGRESS, READY, ENDED, DONE, RAISED = b"F", b"P", b"R", b"N", b"D", b"E"
TEXT, TEXT_AND_TOKENS, REJECTED = 0, 1, 2
BATCH, NONE = ord("B"), 0xFFFFFFFF

# A function that names the inputs at fault is called again without them, at most so often for one batch.
CALLS_MAX = 3
MESSAGE_MAX = 1000
TRACEBACK_MAX = 16_000
TOKENS_MAX = (1 << 64) - 1
# So many of a file's functions are named to whoever misspelt the one to serve.
NAMES_MAX = 10


class Unfit(Exception):
    """What was asked for can't be served; the message says what to do.

    What is said of outputs begins with "the batch function": so the server knows that no other input would do better.
    """


class Connection:
    """A socket to the server. It is this process's alone, although those that the user's code forks have it as well."""

    def __init__(self, descriptor):
        os.set_inheritable(descriptor, False)
        self.owner = os.getpid()
        self.socket = socket.socket(fileno=descriptor)
        self.socket.settimeout(None)
        self.stream = self.socket.makefile("rb", 1 << 16)

    def send(self, kind, *parts):
        if os.getpid() != self.owner:
            leave(sys.exc_info()[1])
        length = struct.pack("<I", 1 + sum(map(len, parts)))
        self.socket.sendall(b"".join((length, kind, *parts)))

    def receive(self):
        (length,) = struct.unpack("<I", self.take(4))
        return self.take(length)

    def take(self, count):
        data = self.stream.read(count)
        if len(data) < count:
            raise EOFError
        return data


def connect():
    """The socket on which orders come and results go, the one on which batches are staged ahead, and the longest output."""
    orders = Connection(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    descriptor, output_max = struct.unpack("<II", orders.receive())
    return orders, Connection(descriptor), output_max


# --- what is called


def load(target):
    """The object that `file.py:name` or `package.module:name` stands for, and what to call it."""
    place, _, name = (target, "", "batchstring") if target.endswith(".py") else target.rpartition(":")
    if not place or not name:
        raise Unfit(f"{target!r} names no function: write file.py:function or package.module:function")
    is_file = place.endswith(".py") or "/" in place
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    module = load_file(place) if is_file else load_module(place)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise Unfit(missing(place, found, part))
        found = getattr(found, part)
    return found, f"{os.path.basename(place)}:{name}"


def load_file(path):
    """As `python path` would: imports find what lies beside the file."""
    path = os.path.abspath(path)
    if os.path.isdir(path):
        raise Unfit(f"{path} is a folder: name the .py file in it, or a module with dots instead of slashes")
    if not os.path.exists(path):
        raise Unfit(f"there is no file {path} (the server runs in {os.getcwd()})")
    sys.path.insert(0, os.path.dirname(path))
    sys.argv = [path]
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Unfit(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_module(name):
    """As `python -m name` would: imports find what lies in the working directory."""
    sys.path.insert(0, os.getcwd())
    sys.argv = [name]
    return importlib.import_module(name)


def missing(place, module, name):
    names = [other for other in dir(module) if not other.startswith("_")]
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"{place} has no {name!r}; did you mean {near[0]!r}?"
    own = [other for other in names if getattr(getattr(module, other), "__module__", "") == module.__name__]
    callables = [other for other in own if callable(getattr(module, other))]
    more = f", and {len(callables) - NAMES_MAX} more" if len(callables) > NAMES_MAX else ""
    return f"{place} has no {name!r}; it defines {', '.join(callables[:NAMES_MAX]) or 'no function'}{more}"


def build(name, found, progress):
    """The callable that is served: an instance, if it is a class, set up."""
    if inspect.isclass(found):
        progress(f"building {name}")
        try:
            found = found()
        except TypeError as error:
            raise Unfit(f"{name} is a class that can't be built without arguments: {error}") from error
    if inspect.ismodule(found) or not callable(found):
        kind = type(found).__name__
        raise Unfit(f"{name} is no function but of the type {kind}, which can't be called (it has no __call__)")
    setup = None if inspect.isroutine(found) else getattr(found, "setup", None)
    if callable(setup):
        progress(f"running the setup() of {name}")
        setup()
    return found


EXTRAS = ("parameters", "request_ids")
# An argument whose name is at least so much like one of these is meant to be it, as request_id and parameter are. Names
# that people may well mean otherwise are less alike: params, hyperparameters, requests.
ALIKE = 0.88


def extras_of(name, function):
    """What the function gets beside the inputs: pairs of what it is and the keyword for it, None for one by position.

    Arguments called parameters and request_ids get those, wherever they stand. A second one that must be given gets the
    parameters whatever its name is, unless that is one of these misspelt. Optional ones of other names are the function's own
    affair.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return []
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):
        raise Unfit(f"{name} is an async function: make it a plain one, def without async")
    known = list(signature.parameters.values())
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [each for each in known if each.kind in plain]
    if not positional and not any(each.kind is each.VAR_POSITIONAL for each in known):
        raise Unfit(f"{name}{signature} takes no inputs: it must take one argument, the list of inputs")
    refuse_misspelt(f"{name}{signature}", [each.name for each in known if each not in positional[:1]])
    extras, in_line = [], True
    for each in positional[1:] + [each for each in known if each.kind is each.KEYWORD_ONLY]:
        must = each.default is each.empty
        what = each.name if each.name in EXTRAS else "parameters" if must and each in positional[1:2] else None
        by_place = each.kind is each.POSITIONAL_ONLY
        if what and what not in [other for other, _ in extras] and (in_line or not by_place):
            extras.append((what, None if by_place else each.name))
        elif must:
            raise Unfit(
                f"{name}{signature} wants more than the server has: it is called with the list of inputs, and with lists "
                "for the arguments parameters and request_ids, if it has them"
            )
        else:
            in_line = False
    return extras


def refuse_misspelt(function, names):
    for name in names:
        near = None if name in EXTRAS else difflib.get_close_matches(name, EXTRAS, 1, ALIKE)
        if near and near[0] not in names:
            raise Unfit(f"{function} has an argument {name!r}; did you mean {near[0]!r}?")


def taken_for_parameters(function, extras):
    """The name of the argument that gets the parameters although it is called otherwise; empty if there is none."""
    if "parameters" not in [what for what, _ in extras]:
        return ""
    names = list(inspect.signature(function).parameters)
    return "" if "parameters" in names else names[1]


# --- batches


class Batch:
    """Inputs, and of the extras what any request has."""

    def __init__(self, frame):
        self.half, self.number, self.count, sent = struct.unpack_from("<BIIB", frame, 1)
        at = 11
        kinds = [None] + [what for bit, what in enumerate(EXTRAS) if sent >> bit & 1]
        lengths = []
        for _ in kinds:
            lengths.append(struct.unpack_from(f"<{self.count}I", frame, at))
            at += 4 * self.count
        texts = {}
        for what, those in zip(kinds, lengths):
            column = texts[what] = []
            for length in those:
                if length == NONE:
                    column.append(None)
                    continue
                column.append(frame[at : at + length].decode())
                at += length
        self.inputs, self.texts = texts[None], texts
        # Requests, by place, that go without: why.
        self.unreadable = {}

    def column(self, what):
        """What each request has of an extra: a dict, or an id."""
        column = self.texts.get(what) or [None] * self.count
        if what == "parameters":
            try:
                return list(map(parameters_in, column))
            except Exception:
                return [self.parameters_of(index, text) for index, text in enumerate(column)]
        return [text or "" for text in column]

    def parameters_of(self, index, text):
        try:
            return parameters_in(text)
        except Exception as error:
            self.unreadable[index] = Unfit(f"the parameters can't be read: {message_of(error).decode()}")


def parameters_in(text):
    found = {} if text is None else json.loads(text)
    if type(found) is not dict:
        raise Unfit("they are no JSON object")
    return found


class Runner:
    """Calls the function, and makes of what it returns what the server takes."""

    def __init__(self, function, extras):
        self.function, self.extras = function, extras
        self.other_name = taken_for_parameters(function, extras)

    def wants(self):
        return sum(1 << EXTRAS.index(what) for what, _ in self.extras)

    def call(self, arguments):
        # Copies, since the function may change what it is given.
        inputs, *rest = map(list, arguments)
        pairs = [(keyword, column) for (_, keyword), column in zip(self.extras, rest)]
        by_place = [column for keyword, column in pairs if keyword is None]
        return self.function(inputs, *by_place, **{keyword: column for keyword, column in pairs if keyword})

    def run(self, batch):
        """One output or exception for each input."""
        arguments = [batch.inputs] + [batch.column(what) for what, _ in self.extras]
        results = [None] * len(batch.inputs)
        left = list(range(len(batch.inputs)))
        if batch.unreadable:
            for index, error in batch.unreadable.items():
                results[index] = error
            left = [index for index in left if index not in batch.unreadable]
            arguments = [[argument[index] for index in left] for argument in arguments]
            if not left:
                return results
        for call in range(1, CALLS_MAX + 1):
            try:
                outputs = listed(self.call(arguments), len(left))
            except BaseException as error:
                named = at_fault(error, len(left))
                if not named or call == CALLS_MAX and len(named) < len(left):
                    raise
                for index in named:
                    results[left[index]] = error
                stays = [index for index in range(len(left)) if index not in named]
                left = [left[index] for index in stays]
                arguments = [[argument[index] for index in stays] for argument in arguments]
                if not left:
                    return results
                continue
            for index, output in zip(left, outputs):
                results[index] = output
            return results
        raise AssertionError("the last call returns or raises")


def at_fault(error, count):
    """The places of the inputs that the exception names in `indices`, if they make sense."""
    try:
        named = {int(index) for index in getattr(error, "indices", ())}
    except Exception:
        return set()
    return named if all(0 <= index < count for index in named) else set()


def listed(outputs, count):
    kind = type(outputs).__name__
    if inspect.iscoroutine(outputs):
        outputs.close()
        raise Unfit("the batch function is async: make it a plain one")
    if outputs is None:
        raise Unfit("the batch function returned None instead of a list: is a return missing?")
    if isinstance(outputs, (str, bytes, bytearray, dict, set, frozenset)) or not hasattr(outputs, "__iter__"):
        raise Unfit(f"the batch function returned a {kind} instead of a list with one string for each input")
    outputs = outputs if isinstance(outputs, (list, tuple)) else list(outputs)
    if len(outputs) != count:
        raise Unfit(f"the batch function returned {counted(len(outputs), 'output')} for {counted(count, 'input')}")
    return outputs


def counted(number, thing):
    return f"{number} {thing}{'' if number == 1 else 's'}"


def encode(results, most):
    """Kinds, lengths and, if there are any, token counts; then all the texts, cut where they are longer than `most`."""
    try:
        texts = list(map(str.encode, results))
    except (TypeError, UnicodeEncodeError):
        return encode_each(results, most)
    lengths = list(map(len, texts))
    if max(lengths) > most:
        return encode_each(results, most)
    return [struct.pack("<I", len(texts)), bytes(len(texts)), struct.pack(f"<{len(texts)}I", *lengths), *texts]


def encode_each(results, most):
    kinds, texts, tokens = bytearray(), [], []
    for result in results:
        kind, text, used = encode_safely(result)
        kinds.append(kind)
        texts.append(cut(text, most))
        tokens.append(used)
    count = len(results)
    parts = [struct.pack("<I", count), bytes(kinds), struct.pack(f"<{count}I", *map(len, texts))]
    if TEXT_AND_TOKENS in kinds:
        parts.append(struct.pack(f"<{count}Q", *tokens))
    return parts + texts


def encode_safely(result):
    """What an object does when it is looked at is the user's code too. It must not cost the others their answers."""
    try:
        return encode_one(result)
    except BaseException as error:
        return REJECTED, b"the batch function's output for this input can't be read: " + message_of(error), 0


def encode_one(result):
    if isinstance(result, str):
        return encode_text(result, TEXT, 0)
    if isinstance(result, BaseException):
        return REJECTED, message_of(result), 0
    if isinstance(result, (tuple, list)) and len(result) == 2 and isinstance(result[0], str):
        text, used = result
        try:
            used = used.__index__()
        except Exception:
            used = -1
        if 0 <= used <= TOKENS_MAX:
            return encode_text(text, TEXT_AND_TOKENS, used)
        return REJECTED, b"the batch function's tokens_used for this input is no whole number, 0 or more", 0
    kind = type(result).__name__
    problem = f"the batch function returned a value of the type {kind} for this input, not a string"
    advice = "; with token counts it is a pair, (output, tokens_used)" if kind == "tuple" else ""
    return REJECTED, f"{problem}{advice}".encode("utf-8", "backslashreplace"), 0


def encode_text(text, kind, used):
    try:
        # Not text.encode(), which may be a subclass's own.
        return kind, str.encode(text), used
    except UnicodeEncodeError as error:
        code, place = ord(error.object[error.start]), error.start
        problem = f"the batch function's output for this input can't be written as UTF-8: lone surrogate U+{code:04X}"
        return REJECTED, f"{problem} at position {place}".encode(), 0


def cut(text, most):
    """What is too long the server refuses: enough that it sees that, not so much that it runs out of memory."""
    end = most + 1
    while end < len(text) and text[end] & 0xC0 == 0x80:
        end += 1
    return text[:end]


# --- what went wrong


def message_of(error):
    """The last line of a traceback."""
    if isinstance(error, Unfit):
        line = str(error)
    else:
        try:
            line = traceback.format_exception_only(type(error), error)[-1].strip()
        except Exception:
            line = type(error).__name__
    return line[:MESSAGE_MAX].encode("utf-8", "backslashreplace")


def traceback_of(error):
    """The whole traceback from where the user's code begins; empty where none of it took part."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in ("<funicular>", "<string>"):
        frames = frames.tb_next
    if isinstance(error, Unfit) and error.__cause__ is None:
        return b""
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:
        text = ""
    # The message may hold the whole input.
    lines = [line if len(line) <= MESSAGE_MAX else line[:MESSAGE_MAX] + " ..." for line in text.splitlines()]
    return "\n".join(lines)[-TRACEBACK_MAX:].encode("utf-8", "backslashreplace")


def send_error(connection, kind, error, prefix=b"", advice=""):
    message = message_of(error) + advice.encode("utf-8", "backslashreplace")
    connection.send(kind, prefix, struct.pack("<I", len(message)), message, traceback_of(error))


def place_of(error):
    """Where in the user's code a start failed, in parentheses; empty where that can't or needn't be told."""
    if isinstance(error, Unfit):
        return ""
    frames = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    if isinstance(error, SyntaxError):
        # What can't be read has no frame yet.
        places.append((str(error.filename), error.lineno))
    own = [(path, line) for path, line in places if line and is_own(path)]
    return f" ({own[-1][0]}, line {own[-1][1]})" if own else ""


def is_own(path):
    """Whether a file is likely the user's own: neither this one, nor Python's, nor one that was installed."""
    library = os.path.dirname(os.__file__) + os.sep
    installed = "/site-packages/" in path or "/dist-packages/" in path
    return not path.startswith(("<", library)) and not installed


def advice_for(error, target):
    """What to do about an exception at start, where Python's own message leaves that open."""
    if isinstance(error, ModuleNotFoundError):
        return f": is it installed for {sys.executable}? --python-bin or an active virtual environment choose another"
    if isinstance(error, SystemExit):
        return f": {target} ends the process when it is imported; put its script part under if __name__ == '__main__':"
    return ""


# --- the two threads


class Staged:
    """The batches staged ahead, at most one in each half: a thread of its own reads and decodes them."""

    def __init__(self, connection):
        self.connection, self.halves, self.changed = connection, {}, threading.Condition()
        threading.Thread(target=self.read, name="funicular-reader", daemon=True).start()

    def read(self):
        try:
            while True:
                batch = Batch(self.connection.receive())
                with self.changed:
                    # One that the server has withdrawn gives way to the next in its half.
                    self.halves[batch.half] = batch
                    self.changed.notify()
        except BaseException as error:
            end(error)

    def has(self, half, number):
        return half in self.halves and self.halves[half].number == number

    def take(self, half, number):
        """The batch with this number, which may still be on its way. Until it is taken nothing else is staged in its half."""
        if not self.has(half, number):
            with self.changed:
                self.changed.wait_for(lambda: self.has(half, number))
        return self.halves.pop(half)


def end(error):
    """Ends the process from either thread: whatever the other one does, without a connection nobody waits for it."""
    if isinstance(error, (EOFError, ConnectionError)):
        os._exit(0)
    # Both may be the user's by now.
    try:
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.__stderr__)
        print(f"outside of the batch function: {message_of(error).decode()}", file=sys.__stderr__, flush=True)
    finally:
        os._exit(4)


def leave(error):
    """Ends a process that the user's code forked and that came back from it: the answer is its parent's to give."""
    code = error.code if isinstance(error, SystemExit) else 1
    try:
        if code is not None and not isinstance(code, int):
            print(code, file=sys.__stderr__)
        if not isinstance(error, SystemExit):
            print("a process that the batch function forked came back from it: end it with os._exit()", file=sys.__stderr__)
        sys.stdout.flush()
        sys.__stderr__.flush()
    finally:
        os._exit(code & 0xFF if isinstance(code, int) else 0 if code is None else 1)


def start(connection, target):
    """The function to serve, or None if there is none; then the server knows why."""

    def progress(text):
        connection.send(PROGRESS, text.encode("utf-8", "backslashreplace"))

    try:
        progress(f"importing {target}")
        found, name = load(target)
        function = build(name, found, progress)
        return Runner(function, extras_of(name, function))
    except BaseException as error:
        send_error(connection, FAILED, error, advice=place_of(error) + advice_for(error, target))
        return None


def next_batch(connection, staged):
    """Waits for the server's order: a batch, or that the one staged in this half is to run."""
    try:
        frame = connection.receive()
        return Batch(frame) if frame[0] == BATCH else staged.take(*struct.unpack_from("<BI", frame, 1))
    except BaseException as error:
        end(error)


def serve(connection, runner, staged, output_max):
    other_name = runner.other_name.encode("utf-8", "backslashreplace")
    named = struct.pack("<BI", runner.wants(), len(other_name)) + other_name
    connection.send(READY, named, sys.version.split()[0].encode())
    while True:
        batch = next_batch(connection, staged)
        number = struct.pack("<I", batch.number)
        try:
            results = runner.run(batch)
        except BaseException as error:
            send_error(connection, RAISED, error, number)
        else:
            if staged.halves:
                # The order to go on is on its way back while the outputs are written.
                connection.send(ENDED, number)
            connection.send(DONE, number, *encode(results, output_max))
        # Not to be kept alive while the process waits for the next batch.
        batch = results = None


def main():
    outlive_signals()
    connection, ahead, output_max = connect()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    faulthandler.enable()
    staged = Staged(ahead)
    runner = start(connection, sys.argv[-1])
    if runner is not None:
        try:
            serve(connection, runner, staged, output_max)
        except BaseException as error:
            end(error)
    sys.stdout.flush()
    os._exit(5)


main()
