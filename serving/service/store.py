"""A root of bundles behind a URL that fsspec knows, such as ``s3://bucket/recall``, in the layout of a local root.

fsspec is imported only when a store is opened. Every fault is a `StoreError` that names the URL, without a password.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from serving.bundle.active import ACTIVE, is_name
from serving.bundle.manifest import MANIFEST, Manifest
from serving.client.address import without_secrets
from serving.errors import BundleError
from serving.files.staging import remove, staged

BLOCK_BYTES = 8 << 20


class StoreError(BundleError):
    """A store cannot be read or written, or lacks an object.

    Attributes:
        short: the message without the text of the store's own error, which may hold anything.

    Args:
        message: names the URL and the reason.
        detail: the text of the store's own error, if any.
    """

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(f"{message}: {detail}" if detail else message)
        self.short = message


class MissingError(StoreError):
    """An object is not in the store."""


class Store:
    """One root of bundles in a store. Every instance reads the listings again.

    Attributes:
        url: as messages show it.

    Args:
        url: of the root.

    Raises:
        StoreError: the package for such URLs is missing, or no package handles them.
    """

    def __init__(self, url: str) -> None:
        self._given = url.rstrip("/")
        self.url = without_secrets(self._given)
        with self._telling("opened"):
            from fsspec.core import url_to_fs

            self._system, self._inside = url_to_fs(self._given)
            self._system.invalidate_cache()

    def place(self, *names: str) -> str:
        """The URL of an object, for messages."""
        return "/".join([self.url, *names])

    def read(self, name: str) -> bytes:
        """The content of a small object; the name is relative to the root.

        Raises:
            MissingError: it is not there.
            StoreError: it cannot be read.
        """
        with self._telling("read", name):
            content: bytes = self._system.cat_file(self._path(name))
            return content

    def active(self) -> bytes:
        """The content of `active.json`.

        Raises:
            MissingError: no bundle is active.
            StoreError: it cannot be read.
        """
        try:
            return self.read(ACTIVE)
        except MissingError:
            given = f"towers bundles activate NAME --root {self.url}"
            raise MissingError(f"{self.url}: none of its bundles is active; name one: {given}") from None

    def manifests(self) -> dict[str, bytes]:
        """The manifests of all bundles, by name; folders that cannot be bundles are left out.

        Raises:
            StoreError: they cannot be read.
        """
        names = [name for name, *rest in self._parts() if rest == [MANIFEST] and is_name(name)]
        with self._telling("read"):
            # One by one: `cat` would take a name with a bracket for a pattern.
            return {name: self._system.cat_file(self._path(name, MANIFEST)) for name in names}

    def folders(self) -> set[str]:
        """The names of all folders of the root, also of what is no bundle.

        Raises:
            StoreError: they cannot be listed.
        """
        return {parts[0] for parts in self._parts() if len(parts) > 1}

    def objects(self, bundle: str) -> dict[str, dict[str, Any]]:
        """The store's listing of a bundle's objects, by their paths in the bundle; `size` in bytes.

        Raises:
            StoreError: they cannot be listed.
        """
        with self._telling("listed", bundle):
            found, folder = self._system.find(self._path(bundle), detail=True), self._path(bundle)
            return {
                str(PurePosixPath(each).relative_to(folder)): info for each, info in found.items() if _is_object(each)
            }

    def blocks(self, name: str) -> Iterator[bytes]:
        """The content of a large object, block by block.

        Raises:
            MissingError: it is not there.
            StoreError: it cannot be read.
        """
        with self._telling("read", name):
            options = {"block_size": BLOCK_BYTES, "cache_type": "none"}
            with self._system.open(self._path(name), "rb", **options) as file:
                while block := file.read(BLOCK_BYTES):
                    yield block

    def write(self, name: str, content: bytes) -> None:
        """Writes a small object, in one piece where the store has such a call.

        Raises:
            StoreError: it cannot be written.
        """
        with self._telling("written", name), self._whole(name) as path:
            self._system.pipe_file(path, content)

    def put(self, file: Path, name: str) -> None:
        """Writes a local file as an object.

        Raises:
            StoreError: it cannot be written.
        """
        with self._telling("written", name), self._whole(name) as path:
            self._system.put_file(str(file), path)

    def copy(self, name: str, to: str) -> None:
        """Copies an object within the store, which does not send it here where it has such a call.

        Raises:
            MissingError: it is not there.
            StoreError: it cannot be copied.
        """
        with self._telling("copied", name), self._whole(to) as path:
            self._system.cp_file(self._path(name), path)

    def remove(self, bundle: str) -> None:
        """Removes all objects of a bundle, if there are any; its manifest first, so that half of one is no bundle.

        Raises:
            StoreError: they cannot be removed.
        """
        for name in (f"{bundle}/{MANIFEST}", bundle):
            with suppress(MissingError), self._telling("removed", name):
                # `rm` would take a name with a bracket for a pattern.
                for path in self._system.find(self._path(name)):
                    self._system.rm_file(path)
        if self._is_local:
            remove(Path(self._path(bundle)))  # folders, which stores of objects do not have

    def _parts(self) -> list[tuple[str, ...]]:
        with self._telling("read"):
            found = filter(_is_object, self._system.find(self._inside))
            return [PurePosixPath(each).relative_to(self._inside).parts for each in found]

    @property
    def _is_local(self) -> bool:
        return "file" in self._system.protocol

    @contextmanager
    def _whole(self, name: str) -> Iterator[str]:
        """Where to write an object. A store of objects has it whole or not at all; a file is renamed at the end."""
        if not self._is_local:
            yield self._path(name)
            return
        with staged(Path(self._path(name)), overwrite=True) as staging:
            yield str(staging)

    def _path(self, *names: str) -> str:
        return "/".join([self._inside.rstrip("/"), *names])

    @contextmanager
    def _telling(self, what: str, *names: str) -> Iterator[None]:
        place = self.place(*names)
        try:
            yield
        except FileNotFoundError:
            raise MissingError(f"{place}: missing") from None
        except ImportError as error:
            extra = "URLs need the extra 'cloud': pip install 'towers-recall[cloud]'"
            raise StoreError(f"{place}: {extra} ({error})") from None
        except Exception as error:
            detail = str(error).replace(self._given, self.url)
            raise StoreError(f"{place}: cannot be {what}: {type(error).__name__}", detail) from error


def refuse_partial(store: Store, name: str, manifest: Manifest, objects: dict[str, dict[str, Any]]) -> None:
    """Compares what a store lists of a bundle with the manifest, without reading it.

    Args:
        store: the store.
        name: the bundle.
        manifest: its manifest.
        objects: from `Store.objects`.

    Raises:
        BundleError: an object is missing, or of another size.
    """
    for file, info in manifest.files.items():
        if file not in objects:
            raise MissingError(f"{store.place(name, file)}: missing")
        size = objects[file]["size"]
        if size != info.bytes:
            reason = "truncated" if size < info.bytes else "altered"
            raise BundleError(f"{store.place(name, file)}: {reason}: {size} bytes, the manifest says {info.bytes}")


def _is_object(path: str) -> bool:
    """Whether a listed path is more than the mark of a folder, an empty object that consoles of stores make."""
    return not path.endswith("/")
