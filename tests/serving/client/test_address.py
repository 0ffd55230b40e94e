"""What messages show of an address: nothing that may be secret."""

import pytest

from serving.client.address import without_secrets


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://h/x.csv", "https://h/x.csv"),
        ("https://h:80/x.csv?sig=S", "https://h:80/x.csv?***"),
        ("HTTPS://h/x?sig=S", "HTTPS://h/x?***"),
        ("https://h/x?a=me@shop&sig=S", "https://h/x?***"),
        ("https://h/a@b/c.csv?sig=S", "https://h/a@b/c.csv?***"),
        ("https://u:S@h/x.csv", "https://***@h/x.csv"),
        ("https://u:S@h/x.csv?a=me@shop&sig=S", "https://***@h/x.csv?***"),
        ("https://u:S?S@h/x", "https://***@h/x"),
        ("https://u:S@S@h/x", "https://***@h/x"),
        ("https://u:S@[::1]:80/x?sig=S", "https://***@[::1]:80/x?***"),
        ("simplecache::https://u:S@h/log.csv?sig=S", "simplecache::https://***@h/log.csv?***"),
        ("zip://t@u:v.csv::https://h:80/x.zip?sig=S", "zip://t@u:v.csv::https://h:80/x.zip?***"),
        ("https://h/x?sig=S&url=https://y/z?a=1", "https://h/x?***"),
        ("https://u:S@h/x?sig=S&url=https://v@y/z", "https://***@h/x?***"),
        ("https://u:S@proxy/https://h/y.csv?sig=1", "https://***@proxy/https://h/y.csv?***"),
        ("filecache::s3://k:S@b/https://x/y?z=1", "***@b/https://x/y?z=1"),
        ("postgresql://u:S@h:5432/db?sslmode=require", "postgresql://***@h:5432/db?sslmode=require"),
        ("u:S@h", "***@h"),
        ("s3://bucket/key", "s3://bucket/key"),
    ],
)
def test_no_secret_is_shown(address: str, shown: str) -> None:
    assert without_secrets(address) == shown
    assert "S" not in shown.replace("HTTPS", "")
