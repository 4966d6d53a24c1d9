import os, sys
if sys.version_info < (3, 8):
    os.write(2, ("funicular needs Python 3.8 or newer, and this is %d.%d: " % sys.version_info[:2]).encode())
    os.write(2, b"name another one with --python-bin\n")
    os._exit(3)
def take(count):
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            os._exit(0)
        data += more
    return data
exec(compile(take(int.from_bytes(take(4), "little")), "<funicular>", "exec"))
