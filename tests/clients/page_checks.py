"""The chat page in Chromium, by page_test.py."""
import shutil
import subprocess
import sys
from pathlib import Path

from harness import Missing, ask, expect, expect_equal
from suites import ServerSuite

SCRIPT = Path(__file__).parent / "page_test.py"
KEY = "secret-key"


class Page(ServerSuite):
    def open(self):
        for program in ("chromium", "chromedriver"):
            if shutil.which(program) is None:
                raise Missing(f"there is no {program}; tools/test_clients.sh installs it")
        super().open()

    def run_page_test(self, url, folder, *words):
        """Its lines count as checks."""
        done = subprocess.Popen(
            [sys.executable, str(SCRIPT), url, "--screenshots", str(folder), *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = 0
        for line in done.stdout:
            lines += line.startswith(("ok  ", "FAIL"))
            self.report.count(line.rstrip("\n"))
        expect(done.wait() in (0, 1) and lines > 0, f"page_test.py ends with {done.returncode}")

    def check_page(self):
        """page_test.py runs to its end"""
        self.run_page_test(self.url, self.place.screenshots)

    def check_page_with_key(self):
        """page_test.py loads the page of a server with a key, given as a password"""
        server = self.start("--api-key", KEY)
        address = server.url.replace("http://", f"http://user:{KEY}@")
        self.run_page_test(address, self.place.screenshots / "key", "--only", "streams")

    def check_files(self):
        """the page is three files from this server alone, and asks for a key if there is one"""
        for path, kind in (("/", "text/html"), ("/page.css", "text/css"),
                           ("/page.js", "text/javascript")):
            status, headers, text = ask(self.url + path)
            expect_equal((status, headers.get_content_type()), (200, kind), path)
            expect("default-src 'self'" in headers["Content-Security-Policy"], f"{headers}")
            expect(text, f"{path} is empty")
        status, headers, _ = ask(self.start("--api-key", KEY).url + "/")
        expect_equal((status, headers["WWW-Authenticate"].split()[0]), (401, "Basic"))
