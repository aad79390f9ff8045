"""Identities of sites: signatures on the public keys of a secure sum.

A coordinator that replaces public keys by its own would read all messages. So who makes
start-up kits draws a key of Ed25519 for each site, and each kit has the public keys of
all. It can sign for every site, and should forget the keys.

>>> keys = [drawn() for _ in range(2)]
>>> publics = {number: public for number, (_, public) in enumerate(keys)}
>>> mine, yours = (Identity(private, publics) for private, _ in keys)
>>> yours.verify(0, b"text", mine.sign(b"text"))
>>> yours.verify(1, b"text", mine.sign(b"text"))
Traceback (most recent call last):
ValueError: Expected public keys that client 1 signed, got others.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fl_sketch.core import files, untrusted_files
from fl_sketch.network.keys import extra
from fl_sketch.network.refused import Refused

FILE = "identity.json"  # of a site
SIGNATURE_BYTES = 64
UNSIGNED = bytes(SIGNATURE_BYTES)


class Identity(NamedTuple):
    """A client's own key of Ed25519, and the public keys of all clients.

    Attributes:
      private: the client's own key, 32 bytes.
      publics: the public keys by the numbers of clients, 32 bytes each.
      context: what signatures are for, such as the name of a run.
    """

    private: bytes
    publics: Mapping[int, bytes]
    context: bytes = b""

    def sign(self, text: bytes) -> bytes:
        """Returns the signature of a text, 64 bytes."""
        with extra():
            from cryptography.hazmat.primitives.asymmetric import ed25519
        key = ed25519.Ed25519PrivateKey.from_private_bytes(self.private)
        return key.sign(self._with_context(text))

    def verify(self, client: int, text: bytes, signature: bytes) -> None:
        """Raises a ValueError unless this client signed this text."""
        with extra():
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric import ed25519
        try:
            key = ed25519.Ed25519PublicKey.from_public_bytes(self.publics[client])
            key.verify(signature, self._with_context(text))
        except (KeyError, InvalidSignature):
            msg = f"Expected public keys that client {client} signed, got others."
            raise ValueError(msg) from None

    def _with_context(self, text: bytes) -> bytes:
        return len(self.context).to_bytes(4, "little") + self.context + text


def drawn() -> tuple[bytes, bytes]:
    """Returns a new private key and its public key, 32 bytes each."""
    with extra():
        from cryptography.hazmat.primitives.asymmetric import ed25519
    key = ed25519.Ed25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def write(folders: Mapping[str, pathlib.Path]) -> None:
    """Draws a key for each site, and writes it to the site's folder, by its name."""
    keys = {name: drawn() for name in folders}
    publics = {name: public.hex() for name, (_, public) in keys.items()}
    for name, folder in folders.items():
        said = {"name": name, "private": keys[name][0].hex(), "publics": publics}
        path, text = folder / FILE, json.dumps(said, indent=1)
        files.write_private(path, text.encode(), folder / f".{FILE}.partial")


def read(folder: pathlib.Path, run: str, names: Sequence[str], number: int) -> Identity:
    """Returns the identity of a site in a run.

    Args:
      folder: the folder that has the site's file.
      run: the name of the run.
      names: the names of the sites of all clients, as the coordinator says them.
      number: the client that this site is.

    Raises:
      Refused: for names that are not those of different sites of the kits, or not this
        site's own at its number.
      ValueError: in one line, for a kit without a readable file.
    """
    path = folder / FILE
    if not path.exists():
        msg = f"Expected {FILE} in {folder}, got none: kits have to be made anew."
        raise ValueError(msg)
    with untrusted_files.reading(path, "to be unchanged"):
        said = json.loads(path.read_text())
        private = bytes.fromhex(said["private"])
        known = {name: bytes.fromhex(one) for name, one in said["publics"].items()}
        own = str(said["name"])
    different = len({*names}) == len(names) and {*names} <= known.keys()
    if not different or not 0 <= number < len(names) or names[number] != own:
        msg = f"Expected clients to be different sites of the kits, and {number} to be "
        raise Refused(msg + f"{own}, got other names.")
    publics = {client: known[name] for client, name in enumerate(names)}
    return Identity(private, publics, run.encode())
