from . import files as files
from . import secret_store as secret_store
from . import strict_json as strict_json
from . import strict_yaml as strict_yaml
from .file_schemas import CONFIG, validate_fields
from .files import write_whole
from .folder import RunFolder
from .identity import digest_config
from .pictures import BLUE, COLORS, GREEN, GREY, ORANGE, VERMILION, new_figure, write_png
from .secret_store import FOLDER, is_destroyed, is_encrypted

__all__ = [
    "BLUE",
    "COLORS",
    "CONFIG",
    "FOLDER",
    "GREEN",
    "GREY",
    "ORANGE",
    "VERMILION",
    "RunFolder",
    "digest_config",
    "files",
    "is_destroyed",
    "is_encrypted",
    "new_figure",
    "secret_store",
    "strict_json",
    "strict_yaml",
    "validate_fields",
    "write_png",
    "write_whole",
]
