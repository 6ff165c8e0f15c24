"""The saved pages in a real browser: desk and phone, light and dark, on paper, by keyboard."""

import pytest
from browser import LOOKS, PHONE, complaints, faults, overflow, printed_pages, visit
from made_folders import prechecked_run, whole_run

from server_app.report.report import write_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The address of the report of twenty sites and twelve rounds."""
    return write_report(whole_run(tmp_path_factory.mktemp("seen"), rounds=12)).as_uri()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_no_page_is_wider_than_its_window_or_has_a_serious_fault(browser, page, width, scheme):
    visit(browser, page, width, scheme)
    assert overflow(browser) <= 0
    assert complaints(browser) == []
    assert faults(browser) == []


def test_a_double_picture_is_as_large_on_a_phone_as_a_single_one(browser, page):
    visit(browser, page, PHONE)
    heights = browser.execute_script(
        "const size = picture =>"
        " parseFloat(getComputedStyle(picture.querySelector('text')).fontSize)"
        " * picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;"
        "const all = kind => [...document.querySelectorAll(kind)].map(size);"
        "return [all('figure.wide svg'), all('figure:not(.wide) svg')]"
    )
    double, single = heights
    assert double
    assert min(double) >= 0.95 * min(single)


def test_a_report_prints_on_six_pages(browser, page):
    visit(browser, page)
    assert printed_pages(browser) <= 6


@pytest.mark.parametrize("sites", [4, 15, 100])
def test_a_prechecks_page_fits_a_phone_and_two_sheets_of_paper(browser, tmp_path, sites):
    page = write_report(prechecked_run(tmp_path, sites)).with_name("precheck.html").as_uri()
    for width, scheme in LOOKS:
        visit(browser, page, width, scheme)
        assert overflow(browser) <= 0
        assert complaints(browser) == []
    assert printed_pages(browser) <= 2
    first = browser.execute_script(
        "return document.querySelector('.next pre').getBoundingClientRect().bottom"
    )
    assert first < 900  # what to do stands on a phone's first screen


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_a_prechecks_page_has_no_serious_fault(browser, tmp_path, width, scheme):
    page = write_report(prechecked_run(tmp_path, 4)).with_name("precheck.html").as_uri()
    visit(browser, page, width, scheme)
    assert faults(browser) == []


def test_the_keyboard_reaches_and_moves_what_scrolls(browser, page):
    from selenium.webdriver.common.keys import Keys

    visit(browser, page, PHONE)
    element = browser.find_element("css selector", "figure.wide .drawing")
    browser.execute_script("arguments[0].focus()", element)
    assert browser.switch_to.active_element == element
    for _ in range(4):
        element.send_keys(Keys.ARROW_RIGHT)
    browser.execute_async_script("setTimeout(arguments[0], 400)")
    assert browser.execute_script("return arguments[0].scrollLeft", element) > 0
