"""What a reader returns: the images and raw boxes of one file or folder. `datasets.formats.read` makes Annotations of it."""

import math
from array import array
from dataclasses import dataclass, field

from datasets.errors import check_path
from datasets.store import Classes, Strings


@dataclass(eq=False)
class Source:
    """Images with raw boxes, class names, notes and problems, as they are written. Nothing is selected or left out yet."""

    path: str  # the file or folder that was read
    root: str = ""  # folder of relative image names
    names: Classes = None  # class names by label; None: the labels are positions in the list that the user gives
    names_from: str = "the list of classes"  # for messages
    needs_classes: str = ""  # problem if `names` is None and the user gives no list; "": classes are then "0", "1", ...
    one_class: bool = False  # without `names`: the list that the user gives must have one class
    names_are_numbers: bool = False  # `names` are positions in the list that the user gives, if its names are words
    groups: tuple[str, ...] = ()  # classes without boxes, which count only if the user names them
    category_ids: list[int] | None = None  # of `names`; None: 0, 1, ...
    is_coco: bool = False  # ids and areas come from a COCO JSON
    find_images: bool = False  # image names come from an annotation file: images are near `path` or in image_root
    sizes_problem: str = ""  # problem if all boxes are fractions and no image can be read; "": the scan reports images
    other_splits: tuple[str, ...] = ()  # of the file or folder, which were not read
    has_yolo_labels: bool = False  # a data file or a list names images whose boxes are in label files of YOLO
    label_files: list[str] = field(default_factory=list)  # in a folder, of all splits
    problems: list[str] = field(default_factory=list)  # with file and line
    notes: list[str] = field(default_factory=list)
    images: Strings = field(default_factory=Strings)  # [N] paths as written
    files: Strings = field(default_factory=Strings)  # [N] the file with the boxes, "" where it is `path`
    lines: array = field(default_factory=lambda: array("i"))  # [N] line in `path`, 0 where there is none
    image_ids: array = field(default_factory=lambda: array("q"))  # [N]
    sizes: array = field(default_factory=lambda: array("i"))  # [N * 2] height, width; 0, 0: not known
    are_fractions: bytearray = field(default_factory=bytearray)  # [N] whether the boxes are fractions of the image
    starts: array = field(default_factory=lambda: array("q"))  # [N] index of the first box of each image
    boxes: array = field(default_factory=lambda: array("d"))  # [K * 4] xyxy, in pixels or fractions
    labels: array = field(default_factory=lambda: array("d"))  # [K]
    crowd: array = field(default_factory=lambda: array("d"))  # [K] 0 or 1
    areas: array = field(default_factory=lambda: array("d"))  # [K] NaN: the area of the box
    ignored_rows: set[int] = field(default_factory=set)  # boxes, all of them crowd, that are ignore regions in any case
    # image -> annotated labels (verified negatives), besides those of its boxes
    annotated: dict[int, list[int]] = field(default_factory=dict)
    places: Strings = field(default_factory=Strings)  # [K] for messages: train.txt:12
    box_lines: array = field(default_factory=lambda: array("i"))  # [K] line of the box in its file; 0: none

    def __len__(self) -> int:
        return len(self.starts)

    def add_image(
        self,
        name: str,
        line: int = 0,
        file: str = "",
        image_id: int | None = None,
        size: tuple[int, int] = (0, 0),
        fractions: bool = False,
    ) -> None:
        """Starts an image, to which the following boxes belong. `size` is height, width; image ids default to 1, 2, ..."""
        try:
            self.images.append(check_path(name))
        except ValueError as error:
            self.images.append("")
            self.problems.append(f"{file or self.path}: {error}")
        self.starts.append(len(self.labels))
        self.lines.append(line)
        self.image_ids.append(len(self.starts) if image_id is None else image_id)
        self.sizes.extend(size)
        self.are_fractions.append(fractions)
        self.files.append(file)

    def add_box(
        self,
        place: str,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        label: float,
        crowd: float = 0.0,
        area: float = math.nan,
        line: int = 0,
    ) -> None:
        """Adds a box to the last image. `resolve_labels` checks it. `line`: of the box, if it has a line."""
        self.boxes.extend((x1, y1, x2, y2))
        self.labels.append(label)
        self.crowd.append(crowd)
        self.areas.append(area)
        self.places.append(place)
        self.box_lines.append(line)
