"""Write an archive of the classes that a run needs: `python -m tests.archive FILE`.

Tests start more than a hundred processes, and each JVM loads and checks the same ten thousand classes; from an archive it has them
at once. One that finds it made by another Java, or of other jars, does without.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from bench.lake import Lake, Live

from icefront.testing.feeds import BulkFeed


def main(file: Path) -> None:
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={file} -Xlog:disable -Xlog:all=error:stderr"
    with Lake.open() as lake:
        jvm = lake.spark.sparkContext._gateway.proc
        with ExitStack() as stack:
            feed = BulkFeed(lake.feed("rows"), keys=100, seed=1)
            feed.scan()
            live = stack.enter_context(Live(lake.pipeline("rows", "rows"), lake.spark))
            live.epoch()
            lake.spark.sql(f"SELECT count(*) FROM {lake.table('rows')}").collect()
    jvm.stdin.close()  # it ends, and writes the archive before it does
    jvm.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
