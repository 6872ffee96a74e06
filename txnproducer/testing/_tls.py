"""A certificate authority of our own, and a broker's certificate signed by it.

Owns the PEM files of one cluster. The keys live as long as its temporary folder, and no one else
trusts them. `trustme` makes them; it is imported only for TLS.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ._errors import EmbeddedKafkaError


@dataclass(frozen=True)
class CertificateFiles:
    """The paths of the PEM files."""

    ca_pem: Path
    keystore_pem: Path


def require_packages() -> None:
    """Refuse a TLS listener without the packages that make its certificate.

    Raises:
        EmbeddedKafkaError: `trustme` is not installed.
    """
    try:
        import trustme  # noqa: F401 - asked for before anything is fetched or made
    except ImportError as error:
        raise EmbeddedKafkaError(
            'A TLS listener needs trustme: run `pip install "txnproducer[testing]"`.'
        ) from error


def make_certificates(folder: Path, names: tuple[str, ...]) -> CertificateFiles:
    """Make a CA and a certificate for these host names and addresses.

    Args:
        folder: the folder for the files.
        names: the names by which clients may reach the broker.

    Returns:
        The CA's certificate, and the broker's key with its certificate chain in one file.

    Raises:
        EmbeddedKafkaError: `trustme` is not installed.
    """
    require_packages()
    import trustme
    from cryptography.hazmat.primitives import serialization

    # A new authority for each cluster, so no certificate is worth anything after its end.
    authority = trustme.CA()
    issued = authority.issue_cert(*names)
    # Java reads private keys in PKCS#8 only, and trustme writes the older form.
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    pkcs8 = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
    files = CertificateFiles(folder / "ca.pem", folder / "broker.pem")
    files.ca_pem.write_bytes(authority.cert_pem.bytes())
    # Made before it is written, so that the key is never readable by others.
    files.keystore_pem.touch(mode=0o600)
    files.keystore_pem.write_bytes(pkcs8 + chain)
    return files
