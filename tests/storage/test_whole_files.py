"""A file that is written whole: its content and its name are on the disk before the call returns."""

import os
import stat

from fedpriv.storage import files


def test_write_whole_syncs_file_then_folder(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def noted(fd):
        synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else (tmp_path / "a.json").exists())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    files.write_whole(tmp_path / "a.json", b"{}")
    assert synced == [False, "folder"]  # the file has its final name only after its content was synced
    assert (tmp_path / "a.json").read_bytes() == b"{}"
