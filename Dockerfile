# A CPU image of the `cadenza` command, from public registries alone:
#   docker build -t cadenza .
#   docker run --rm -v "$PWD/runs:/home/cadenza/runs" cadenza quickstart
# No test builds it. For a GPU, leave out the line that installs torch: the default wheel brings CUDA.
FROM python:3.12-slim

RUN useradd --create-home cadenza
WORKDIR /sources
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY configs configs
RUN pip install --no-cache-dir --constraint constraints.txt torch --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir --constraint constraints.txt ".[loop]"

USER cadenza
WORKDIR /home/cadenza
ENTRYPOINT ["cadenza"]
CMD ["--help"]
